"""The interpreters of TextWorldExpress: one Java virtual machine per process, one interpreter per open game.

Starting a virtual machine takes half a second and an interpreter a tenth; a step takes a third of a millisecond. So
interpreters are kept and reused, and parallel episodes never share one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from typing import Any

from turnscale.errors import TaskError

Game = Any
"""A ``textworldexpress.runtime.PythonInterface`` behind py4j."""


class Pool:
    """Idle interpreters by game and generation properties."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[Game]] = defaultdict(list)
        self._machine: Any = None
        self._process = 0

    def take(self, game: str, properties: str) -> Game:
        """An interpreter with the game loaded; raises TaskError where package or Java are missing."""
        if self._process != os.getpid():  # a forked child must not talk through its parent's connection
            self._machine, self._process = _start(), os.getpid()
            self._idle.clear()
        idle = self._idle[game, properties]
        if idle:
            return idle.pop()
        interpreter = self._machine.jvm.textworldexpress.runtime.PythonInterface()
        problem = interpreter.load(game, properties)
        if problem:
            raise TaskError(
                f"TextWorldExpress refuses {game} with {properties} ({problem})",
                key="parameters",
                remedy="change the parameters of the game.",
            )
        return interpreter

    def give(self, game: str, properties: str, interpreter: Game) -> None:
        """Hand an interpreter back."""
        self._idle[game, properties].append(interpreter)


pool = Pool()


def generate(game: Game, fold: str, seed: int, gold: bool = False) -> dict[str, Any]:
    """Start a game and return the first state; raises TaskError where it cannot be generated."""
    from py4j.protocol import Py4JJavaError

    try:
        state: dict[str, Any] = json.loads(game.generateNewGameJSON(seed, fold, gold))
    except Py4JJavaError as error:
        raise TaskError(
            f"TextWorldExpress cannot generate seed {seed} of fold {fold}",
            key="parameters",
            remedy="change the parameters: for the map reader 8 locations at distance 3, or 4 at distance 2, work.",
        ) from error
    return state


def _start() -> Any:
    """Launch the virtual machine, which dies with this process."""
    try:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from textworld_express.constants import BASEPATH, JAR_PATH
    except ImportError as error:
        raise TaskError(
            f"the text games need a package that is not installed ({error.name})",
            key="kind",
            remedy="pip install 'turnscale[textworld]'.",
        ) from error
    if shutil.which("java") is None:
        raise TaskError(
            "the text games need Java, which is not on the path",
            key="kind",
            remedy="install a Java runtime, version 8 or later.",
        )
    port = launch_gateway(classpath=JAR_PATH, die_on_exit=True, cwd=BASEPATH)
    return JavaGateway(gateway_parameters=GatewayParameters(auto_field=True, port=port))
