"""``FunctionOfThread``: a global function of TVM that is another one in some threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm

from .errors import LayoutExtError


class FunctionOfThread:
    """A global function of TVM that is another one in some threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._own = threading.local()
        self._lock = threading.Lock()
        self._users = 0
        self._before: Any = None
        self._chooses: Any = None

    def before(self) -> Any:
        """What it is in other threads, or None."""
        now = tvm.get_global_func(self.name, allow_missing=True)
        is_ours = self._users and now is not None and now.same_as(self._chooses)
        return self._before if is_ours else now

    @contextmanager
    def replaced(self, function: Callable[..., Any]) -> Iterator[None]:
        """While entered, it is this one in this thread; an error comes out with its class."""
        failed = list[LayoutExtError]()

        def kept(*args: Any) -> Any:
            try:
                return function(*args)
            except LayoutExtError as error:
                # Its class is lost on its way through TVM.
                failed.append(error)
                raise

        outer = getattr(self._own, "function", None)
        self._enter()
        self._own.function = kept
        try:
            yield
        except Exception:
            if failed:
                raise failed[0] from None
            raise
        finally:
            self._own.function = outer
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            before = self.before()
            self._users += 1
            if before is not self._before or self._users == 1:
                self._before = before
                tvm.register_global_func(self.name, self._choose, override=True)
                self._chooses = tvm.get_global_func(self.name)

    def _leave(self) -> None:
        with self._lock:
            before = self.before()
            self._users -= 1
            if not self._users:
                tvm.register_global_func(self.name, before, override=True)

    def _choose(self, *args: Any) -> Any:
        function = getattr(self._own, "function", None)
        return (self._before if function is None else function)(*args)
