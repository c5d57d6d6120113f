UPDATE dead_letter SET state = %s, actor = %s, remark = %s WHERE id = %s AND state = 'open'
