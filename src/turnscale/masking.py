"""Passwords and tokens out of anything that is printed, logged or stored."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

MASK = "***"

_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"]*@")
_PARAMETER = re.compile(
    r"((?:password|passwd|pwd|passphrase|token|secret|api_?key|access_?key)\s*[=:]\s*)[^\s&;,'\")]+",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"://[^\s'\"]*?:([^\s'\"]*)@")
_ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_BACKEND_STORE_URI", "MLFLOW_REGISTRY_URI")
_SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY")
_SHORTEST = 4


def masked(text: str) -> str:
    """The text with user and password of every address, every ``password=...`` and the environment's secrets masked.

    Too much is masked rather than too little: everything between ``://`` and the last ``@`` of a word goes.
    """
    text = _PARAMETER.sub(rf"\g<1>{MASK}", _USER.sub(rf"\g<1>{MASK}@", text))
    for secret in _known():
        text = text.replace(secret, MASK)
    return text


def _known() -> list[str]:
    """Secrets that the environment holds, the longest first."""
    found = {os.environ.get(name, "") for name in _SECRETS}
    for name in _ADDRESSES:
        for password in _IN_ADDRESS.findall(os.environ.get(name, "")):
            found |= {password, unquote(password)}
    return sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)
