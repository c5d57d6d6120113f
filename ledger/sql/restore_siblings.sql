SELECT product_id, epoch, sold, layout_version
FROM shard_stock
WHERE product_id IN ({values})
