INSERT INTO audit_report (scope, product_id, differences, report)
VALUES (%s, %s, %s, %s)
