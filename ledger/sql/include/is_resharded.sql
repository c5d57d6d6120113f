    decided.version = product.layout_version
    OR (decided.version = product.layout_version - 1 AND decided.state IN ('wanted', 'rolled_back'))
