"""What operators use: the command line, checks and repairs of a running application, and jobs on EMR. No job imports it."""
