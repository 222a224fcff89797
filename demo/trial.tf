# What `make trial` makes in an account, and removes at its end: a stream of two shards with a key of its own, a consumer and a lease table.
terraform {
  required_version = ">= 1.10"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.0"
    }
  }
}

provider "aws" {
  default_tags {
    tags = { purpose = "kinesis-efo-trial" }
  }
}

variable "name" {
  type        = string
  description = "Name of everything that is made."
}

resource "aws_kms_key" "stream" {
  description             = "Records of ${var.name}"
  deletion_window_in_days = 7
}

resource "aws_kinesis_stream" "orders" {
  name            = var.name
  shard_count     = 2
  stream_mode_details {
    stream_mode = "PROVISIONED"
  }
  encryption_type = "KMS"
  kms_key_id      = aws_kms_key.stream.arn
}

resource "aws_kinesis_stream_consumer" "lake" {
  name       = "lake"
  stream_arn = aws_kinesis_stream.orders.arn
}

resource "aws_dynamodb_table" "leases" {
  name         = var.name
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "leaseKey"
  attribute {
    name = "leaseKey"
    type = "S"
  }
}

output "manifest" {
  value = jsonencode({
    schemaVersion = 1
    application   = "lake"
    environment   = "trial"
    region        = split(":", aws_kinesis_stream.orders.arn)[3]
    leaseTable    = { name = aws_dynamodb_table.leases.name }
    streams = {
      orders = {
        streamName  = aws_kinesis_stream.orders.name
        streamArn   = aws_kinesis_stream.orders.arn
        consumerArn = aws_kinesis_stream_consumer.lake.arn
      }
    }
  })
}
