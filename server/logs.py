"""Logs as one JSON object a line on stderr; libraries that use logging end up in the same place."""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import FilteringBoundLogger, Processor

_SHARED: list[Processor] = [
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    # Without local variables: passwords are among them.
    structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
]


def configure_logs(**fields: object) -> FilteringBoundLogger:
    """Set logging up for this process; `fields` are on every line of the logger returned."""
    structlog.configure(
        processors=[*_SHARED, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    log: FilteringBoundLogger = structlog.get_logger()
    return log.bind(**fields)
