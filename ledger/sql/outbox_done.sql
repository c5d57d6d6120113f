UPDATE outbox SET state = 'done', remark = %s WHERE id = %s AND state = 'open'
