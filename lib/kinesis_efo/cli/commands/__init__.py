"""What each command is called with. Nothing here imports the AWS SDK, so that help and completion are quick."""
