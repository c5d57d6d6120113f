UPDATE (
    {rows}
) AS added
STRAIGHT_JOIN product_inventory AS product USING (product_id)
SET
    product.total_stock = product.total_stock + added.total,
    product.available_stock = product.available_stock + added.available,
    product.pre_deduct_stock = product.pre_deduct_stock + added.held,
    product.sold_count = product.sold_count + added.sold,
    product.version = product.version + 1
