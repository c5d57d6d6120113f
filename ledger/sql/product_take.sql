UPDATE product_inventory SET
    {column} = {column} - %s,
    sold_count = sold_count + %s,
    version = version + 1
WHERE product_id = %s AND version = %s AND {column} >= %s
