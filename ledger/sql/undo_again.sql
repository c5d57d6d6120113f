UPDATE outbox
SET state = 'open', due_time = CURRENT_TIMESTAMP(3)
WHERE kind = 'undo' AND partition_id = %s AND state = 'done' AND remark = %s
