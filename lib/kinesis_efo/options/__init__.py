"""What users say about reading and writing: the options, and the settings that they become."""

from kinesis_efo.options.source import (
    SOURCE_OPTIONS,
    AwsSettings,
    Option,
    RetrySettings,
    SourceOptions,
    Start,
    option_table,
)

__all__ = ["SOURCE_OPTIONS", "AwsSettings", "Option", "RetrySettings", "SourceOptions", "Start", "option_table"]
