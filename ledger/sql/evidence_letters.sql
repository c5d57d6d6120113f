SELECT product_id, MAX(id)
FROM dead_letter
WHERE id > %s
    AND state = 'open'
    AND product_id > 0
    AND reason LIKE 'below_zero %%'
GROUP BY product_id
