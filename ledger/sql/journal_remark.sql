UPDATE inventory_log
SET remark = CONCAT(IF(remark = '', '', CONCAT(LEFT(remark, %s), '; ')), %s)
WHERE product_id = %s AND request_id = %s AND kind = 'deduct'
