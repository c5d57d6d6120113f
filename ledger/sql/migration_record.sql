INSERT INTO schema_migration (version, name, checksum) VALUES (%s, %s, %s)
