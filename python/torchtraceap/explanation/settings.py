"""Settings of a language model: which one, how long to wait, how often to ask, and at what cost.

Note [Off by default]: nothing is asked, and no package for it imported, unless a base URL is given.
A key in the environment alone, `OPENAI_API_KEY` in particular, turns nothing on.

Prices of tokens come from a file of the user: none are built in, as they change every month.

gpt-4.1:
  input: 2.00    # US dollars per million tokens of prompts
  output: 8.00   # the same of answers
"""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import cache_folder
from torchtraceap.errors import OptionError

__all__ = [
    "BASE_URL",
    "CACHE_MODES",
    "KEY",
    "MODEL",
    "ModelSettings",
    "Price",
    "is_local",
    "read_prices",
    "settings_from",
]

BASE_URL = "TORCHTRACEAP_LLM_BASE_URL"
MODEL = "TORCHTRACEAP_LLM_MODEL"
KEY = "TORCHTRACEAP_LLM_KEY"
_OPENAI_KEY = "OPENAI_API_KEY"
_MOST_BYTES = 1 << 20
"""Most bytes of a file of prices."""

CACHE_MODES = ("write", "read", "off")
""""write" reads and writes, "read" only reads, "off" does neither."""

_LOCAL = tuple(
    map(
        ipaddress.ip_network,
        ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16",
         "0.0.0.0/32", "::1/128", "::/128", "fc00::/7", "fe80::/10"),
    )
)  # fmt: skip


def _cache_path() -> Path:
    return cache_folder() / "llm.sqlite"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model, and the limits of one run.

    Raises:
        OptionError: A value is outside its range.
    """

    base_url: str
    """Base URL of Chat Completions, such as "http://127.0.0.1:8080/v1"."""
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    """Longest silence of the server in seconds. A whole answer, retries included, may take five
    times as long."""
    retries: int = 4
    """Retries of a request that a busy server refused, after a pause of its choice."""
    max_calls: int = 50
    """Answers asked for in one run; what the cache answers doesn't count. Nor do retries, and
    requests in a form that the server does not take."""
    max_tokens: int = 200_000
    """Most tokens of all prompts and answers of one run."""
    max_usd: float | None = None
    """Most dollars of one run; needs `prices` that know the model. None sets no limit."""
    prices: Path | None = None
    """File of prices (`read_prices`)."""
    cache: str = "write"
    """One of `CACHE_MODES`."""
    cache_path: Path = field(default_factory=_cache_path)
    seed: int | None = None
    """Asked of servers that take one."""
    max_answer_tokens: int = 1500
    """Most tokens of one answer."""

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        if not self.model.strip() or not self.model.isprintable() or len(self.model) > 200:
            raise OptionError("the name of the model is one line of at most 200 characters")
        key = self.key or ""
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise OptionError("the key of the model has characters that no key has")
        if self.cache not in CACHE_MODES:
            raise OptionError(f"the cache is one of {', '.join(CACHE_MODES)}, not {self.cache!r}")
        _check_number("the timeout", self.timeout_s, above=0, most=3600)
        _check_number("the number of retries", self.retries, least=0, most=20)
        _check_number("the limit of calls", self.max_calls, least=1)
        _check_number("the limit of tokens", self.max_tokens, least=1)
        _check_number("the limit of an answer's tokens", self.max_answer_tokens, least=1)
        if self.max_usd is not None:
            _check_number("the limit of cost", self.max_usd, least=0)


def settings_from(
    *,
    base_url: str | None = None,
    model: str | None = None,
    key: str | None = None,
    environment: Mapping[str, str] | None = None,
    **limits: Any,
) -> ModelSettings | None:
    """Return settings from options; what is None is taken from the environment or is the default.

    Args:
        base_url: Else `TORCHTRACEAP_LLM_BASE_URL`.
        model: Else `TORCHTRACEAP_LLM_MODEL`.
        key: Else `TORCHTRACEAP_LLM_KEY`, else `OPENAI_API_KEY`. Servers at home need none.
        environment: Variables; those of the process if None.
        limits: Other fields of `ModelSettings`, by name.

    Returns:
        None where no base URL is given: no model is to be asked.

    Raises:
        OptionError: A base URL without a model, a model without one, or a value out of range.
    """
    known = os.environ if environment is None else environment
    base_url = base_url or known.get(BASE_URL) or None
    model = model or known.get(MODEL) or None
    if base_url is None and model is None:
        return None
    if base_url is None:
        raise OptionError(f"a model needs the base URL of its server: --llm-base-url or {BASE_URL}")
    if model is None:
        raise OptionError(f"a server of models needs the name of a model: --llm-model or {MODEL}")
    key = key or known.get(KEY) or known.get(_OPENAI_KEY) or None
    given = {name: value for name, value in limits.items() if value is not None}
    return ModelSettings(base_url, model, key, **given)


def is_local(base_url: str) -> bool:
    """Return True if requests stay on this machine or in its private network.

    It goes by the address as it is written: no name is resolved, except "localhost". What a proxy
    of the environment would see is not local.
    """
    parts = urlsplit(base_url)
    host = (parts.hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return not _goes_by_proxy(parts)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return any(mapped in network for network in _LOCAL) and not _goes_by_proxy(parts)


def _goes_by_proxy(parts: SplitResult) -> bool:
    from urllib.request import getproxies, proxy_bypass  # loads much, and few runs need it

    proxies = getproxies()
    return bool(proxies.get(parts.scheme) or proxies.get("all")) and not proxy_bypass(
        parts.hostname or ""
    )


def _check_url(base_url: str) -> None:
    """Raise OptionError where requests can't go to the URL, which its text does not repeat: it may
    hold a password."""
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # read, and refused, when asked for
    except ValueError:
        raise OptionError("the base URL of the model is no URL") from None
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            f"the base URL of the model holds a user or password; give a key by {KEY}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError("the base URL of the model has to begin with http:// or https://")
    if parts.query or parts.fragment:
        raise OptionError("the base URL of the model ends before a ? or #")
    if not (base_url.isascii() and base_url.isprintable()) or " " in base_url:
        raise OptionError("the base URL of the model has characters that no URL has")


def _check_number(
    what: str, value: float, *, above: float = -math.inf, least: float = -math.inf,
    most: float = 1e12,
) -> None:  # fmt: skip
    if not (math.isfinite(value) and value > above and least <= value <= most):
        lowest = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        raise OptionError(f"{what} is {lowest} and at most {most:g}, not {value}")


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one model in US dollars per million tokens."""

    input: float
    output: float

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (self.input * prompt_tokens + self.output * completion_tokens) / 1e6


def read_prices(path: PathLike) -> Mapping[str, Price]:
    """Read prices by model from YAML or JSON.

    Raises:
        OptionError: It can't be read, or holds something else.
    """
    import yaml

    try:
        with Path(path).open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise OptionError(f"{path}: can't be read: {error.strerror or error}") from None
    if len(content) > _MOST_BYTES:
        raise OptionError(f"{path}: is too large for a file of prices")
    try:
        document = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        raise OptionError(f"{path}: is neither YAML nor JSON") from None
    if not isinstance(document, dict):
        raise OptionError(f"{path}: prices are a table of models, each with input and output")
    prices = {}
    for model, entry in document.items():
        if not isinstance(entry, dict) or set(entry) != {"input", "output"}:
            raise OptionError(f"{path}: {model}: input and output are needed, and nothing else")
        amounts = [entry["input"], entry["output"]]
        if not all(type(each) in (int, float) and 0 <= each <= 1e9 for each in amounts):
            raise OptionError(f"{path}: {model}: prices are numbers of dollars, at least 0")
        prices[str(model)] = Price(float(amounts[0]), float(amounts[1]))
    return prices
