"""Declares what kinesis-efo needs in AWS: streams, consumers, lease tables, access, alarms and the manifest."""
