DELETE FROM worker WHERE name = %s
