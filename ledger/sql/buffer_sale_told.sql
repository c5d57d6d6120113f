DELETE FROM buffer_sale WHERE id IN ({values})
