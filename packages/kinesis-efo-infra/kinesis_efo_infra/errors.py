"""The exceptions of the constructs.

```
InfraError
├── ArgumentError   an argument of a construct is wrong
└── MissingError    something that synthesis needs is not installed
```
"""

from __future__ import annotations


class InfraError(Exception):
    """Base of all exceptions of the infrastructure code."""


class ArgumentError(InfraError, ValueError):
    """An argument of a construct is wrong; the message says which construct, what it must be, the value, and what to do."""


class MissingError(InfraError, ImportError):
    """Something that synthesis needs is not installed; the message says what to run."""
