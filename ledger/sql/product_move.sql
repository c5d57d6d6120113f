UPDATE (
    {rows}
) AS moved
STRAIGHT_JOIN product_inventory AS product USING (product_id)
SET
    product.total_stock = product.total_stock + moved.total,
    product.available_stock = product.available_stock + moved.available,
    product.pre_deduct_stock = product.pre_deduct_stock + moved.held,
    product.sold_count = product.sold_count + moved.sold,
    product.version = product.version + 1
WHERE product.available_stock + moved.available >= 0
