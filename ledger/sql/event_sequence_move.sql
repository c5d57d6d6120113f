INSERT INTO event_sequence (id, last_id) VALUES (1, %s)
ON DUPLICATE KEY UPDATE last_id = event_sequence.last_id + VALUES(last_id)
