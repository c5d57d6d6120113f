-- The timeline of an order, over all its products.
ALTER TABLE inventory_log
    ADD KEY by_order (order_id)
