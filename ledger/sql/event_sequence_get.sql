SELECT last_id FROM event_sequence WHERE id = 1
