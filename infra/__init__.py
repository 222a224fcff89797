"""Declares the AWS resources that kinesis-efo needs: streams, consumers, lease tables, IAM roles and policies, alarms and manifests."""
