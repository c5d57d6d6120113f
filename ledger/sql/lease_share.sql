SELECT CEILING(
    (SELECT COUNT(*) FROM partition_lease) / (SELECT COUNT(*) FROM worker)
)
