"""The declarations of the commands. They do not import the AWS SDK, so that help and completion are quick."""
