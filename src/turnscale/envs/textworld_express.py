"""Text games of TextWorldExpress 1.1.0 (Jansen and Cote 2023): coin collector and map reader.

Optional: needs the package ``textworld-express`` and Java. All games of a process live in one Java virtual machine
(``textworld_pool.py``). The package's own train, dev and test folds of 1,000 seeds are the splits; ``tasksuccess``
is the only reward. The map reader's demonstrations are the package's gold paths without their idle actions. The
coin collector's gold path is drawn anew at every call, seed or no seed, so its expert is a depth-first search of
ours, which knows no more than it has seen.

A turn is a game action such as ``move north`` or ``take coin``, after an optional ``<think> ... </think>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from turnscale.config.load import Strict
from turnscale.envs.protocol import Demonstration, Limits, Step, Task
from turnscale.envs.search_demonstrations import think_span
from turnscale.envs.search_task import FILLERS, DemonstrationMix
from turnscale.envs.textworld_pool import Game, generate, pool
from turnscale.envs.textworld_words import WORDS
from turnscale.errors import TaskError

FOLDS = {"train": "train", "validation": "dev", "test": "test"}
"""The package's name for the fold of each split; every benchmark is of the test fold."""
FIRST_SEED = {"train": 0, "dev": 10_000, "test": 20_000}
FOLD_SIZE = 1000
OPPOSITE = {"north": "south", "east": "west", "south": "north", "west": "east"}
IDLE = frozenset({"look around", "task", "inventory"})

INSTRUCTIONS = (
    "You play a text game. Each of your messages is one turn: think briefly inside <think> </think> if you like, "
    "then write exactly one action, such as `move north`, `take coin`, `put coin in box`, `read map`, "
    "`look around` or `inventory`. An action that is not possible is answered by `err`."
)

_TURN = re.compile(r"\s*(?:<think>(?:(?!</?think>).)*</think>)?((?:(?!</?think>).)*)", re.DOTALL)
_EXIT = re.compile(r"To the (\w+) you see the ([\w -]+)\.")
_DIRECTION = re.compile(r"\bto the (north|south|east|west) you see\b", re.IGNORECASE)


class TextWorldParameters(Strict):
    """Which game, and how it is shown.

    Attributes:
        game: ``coin`` (find the coin and take it) or ``mapreader`` (fetch the coin with the help of a map).
        locations: rooms of a game. Coin games of 5 rooms or fewer often repeat across folds.
        max_distance: map reader only: how far away the coin may be. Not every pair can be generated: 8 and 3,
            or 4 and 2, can be for all seeds; 5 and 3 cannot.
        expert_turns: least and greatest number of the expert's actions; other seeds are left out.
        observations: ``full`` text, or ``words``: lower-case words without punctuation, and of a room only its
            name, its exits and the objects of the task, for word-level models.
        stray: probability per turn that an imperfect demonstrator begins to act at random.
        malformed: probability per turn that an imperfect demonstrator says something meaningless.
        expert_share: share of experts in the demonstration mix.
        think_min, think_max: number of filler words in a demonstrated think span, uniform.
        instructions: whether to explain the game in prose, for the system message of a chat model.
    """

    game: Literal["coin", "mapreader"]
    locations: int = Field(default=7, ge=2, le=11)
    max_distance: int = Field(default=3, ge=1, le=8)
    expert_turns: Annotated[tuple[int, int], Field(strict=False)] = (1, 100)
    observations: Literal["full", "words"] = "words"
    stray: float = Field(default=0.25, ge=0, le=1)
    malformed: float = Field(default=0.05, ge=0, le=1)
    expert_share: float = Field(default=0.3, ge=0, le=1)
    think_min: int = Field(default=1, ge=0, le=40)
    think_max: int = Field(default=5, ge=1, le=40)
    instructions: bool = False

    @property
    def properties(self) -> str:
        """The package's generation properties, as it reads them."""
        if self.game == "coin":
            return f"numLocations={self.locations},includeDoors=0,numDistractorItems=0"
        return (
            f"numLocations={self.locations},maxDistanceApart={self.max_distance},includeDoors=0,"
            "maxDistractorItemsPerLocation=0"
        )


def parse(turn: str) -> str | None:
    """The action of a turn in lower case with single spaces, or None where the think span is malformed."""
    match = _TURN.fullmatch(turn)
    return " ".join(match.group(1).lower().split()) if match else None


def in_words(text: str) -> str:
    """Lower-case words without punctuation; of a room its name, exits and the objects of the task."""
    if text.startswith("You are in"):
        sentences = re.split(r"(?<=\.)\s+", text)
        kept = (
            s for s in sentences if re.match("You are in|To the", s) or re.search(r"\b(coin|box|map)\b", s)
        )
        text = " ".join(kept)
    return " ".join(re.findall(r"[a-z0-9-]+", text.lower()))


@dataclass(frozen=True)
class Map:
    """A game as found by walking through all its rooms: description, first room, exits, rooms with a coin."""

    description: str
    start: str
    exits: Mapping[str, Mapping[str, str]]
    coins: frozenset[str]

    @property
    def text(self) -> str:
        """The map as canonical JSON."""
        rooms = {room: dict(exits) for room, exits in self.exits.items()}
        return json.dumps([self.description, self.start, rooms, sorted(self.coins)], sort_keys=True)

    def depth_first(self) -> list[str]:
        """Actions of a depth-first search, exits in the order north, east, south, west, up to taking the coin."""
        actions: list[str] = []
        seen: set[str] = set()

        def visit(room: str) -> bool:
            seen.add(room)
            if room in self.coins:
                return True
            for direction in OPPOSITE:
                following = self.exits[room].get(direction)
                if following is not None and following not in seen:
                    actions.append(f"move {direction}")
                    if visit(following):
                        return True
                    actions.append(f"move {OPPOSITE[direction]}")
            return False

        if not visit(self.start):
            raise TaskError(
                "a coin game has no coin within reach", key="parameters", remedy="change the parameters."
            )
        return [*actions, "take coin"]


class TextWorldFamily:
    """A game of TextWorldExpress with fixed parameters; its one test benchmark bears the family's name."""

    version = "1"

    def __init__(self, name: str, limits: Limits, parameters: TextWorldParameters) -> None:
        self.name, self.limits, self.parameters = name, limits, parameters
        self.benchmarks: tuple[str, ...] = (name,)
        self.expert_share = parameters.expert_share
        self.instructions = INSTRUCTIONS if parameters.instructions else ""
        self._mix = DemonstrationMix(think_min=parameters.think_min, think_max=parameters.think_max)
        self._map = lru_cache(maxsize=4096)(self._explore)
        self._path = lru_cache(maxsize=4096)(self._find_path)
        self._seeds: dict[str, list[int]] = {fold: [] for fold in FOLDS.values()}
        self._scanned = dict.fromkeys(FOLDS.values(), 0)

    def task(self, split: str, index: int) -> Task:
        """Fitting seed number ``index`` of the split's fold; the length of the expert's path is its difficulty."""
        if split not in ("train", "validation", self.name):
            raise TaskError(
                f"family {self.name} has no split {split!r}",
                key=split,
                remedy=f"use one of train, validation, {self.name}.",
            )
        fold = FOLDS[split if split != self.name else "test"]
        self._scan(fold, index + 1)
        if index >= len(self._seeds[fold]):
            raise TaskError(
                f"task {index} was asked of {len(self._seeds[fold])} seeds with {self._turns_text()} actions",
                key=split,
                remedy="ask for fewer tasks or widen expert_turns.",
            )
        seed = self._seeds[fold][index]
        params = {
            "difficulty": f"{len(self._path(fold, seed)):02d}-turn",
            "game": self.parameters.game,
            "properties": self.parameters.properties,
            "observations": self.parameters.observations,
            "fold": fold,
            "seed": seed,
        }
        return Task(self.name, self.version, split, index, params)

    def size(self, split: str) -> int:
        """Number of the fold's 1,000 seeds for which the expert's path has a fitting length."""
        fold = self.task(split, 0).params["fold"]
        self._scan(fold, FOLD_SIZE)
        return len(self._seeds[fold])

    def _scan(self, fold: str, count: int) -> None:
        """Look through the fold's seeds in order until ``count`` fitting ones are known or none is left."""
        least, greatest = self.parameters.expert_turns
        while len(self._seeds[fold]) < count and self._scanned[fold] < FOLD_SIZE:
            seed = FIRST_SEED[fold] + self._scanned[fold]
            self._scanned[fold] += 1
            if least <= len(self._path(fold, seed)) <= greatest:
                self._seeds[fold].append(seed)

    def _turns_text(self) -> str:
        return " to ".join(map(str, self.parameters.expert_turns))

    def show(self, text: str) -> str:
        """An observation as the policy sees it."""
        return in_words(text) if self.parameters.observations == "words" else text.strip()

    def content(self, task: Task) -> str:
        """Task description, first room and map."""
        return self._map(task.params["fold"], task.params["seed"]).text

    def _explore(self, fold: str, seed: int) -> Map:
        game = pool.take(self.parameters.game, self.parameters.properties)
        first = generate(game, fold, seed)["observation"]
        rooms: dict[str, dict[str, str]] = {}
        coins: set[str] = set()

        def walk(text: str) -> None:
            here = _room(text)
            rooms[here] = {direction.lower(): room for direction, room in _EXIT.findall(text)}
            if re.search(r"\bcoin\b", text):
                coins.add(here)
            for direction, room in rooms[here].items():
                if room not in rooms:
                    walk(_act(game, f"move {direction}")["observation"])
                    _act(game, f"move {OPPOSITE[direction]}")

        walk(first)
        description = game.getTaskDescription()
        pool.give(self.parameters.game, self.parameters.properties, game)
        return Map(description, _room(first), rooms, frozenset(coins))

    def make(self) -> TextWorldEnvironment:
        """A fresh environment."""
        return TextWorldEnvironment(self)

    def vocabulary(self) -> Sequence[str]:
        """All words of the game in its ``words`` form, of the think spans and of the grammar."""
        if self.parameters.observations != "words":
            raise TaskError(
                f"family {self.name} shows full text, which has no closed vocabulary",
                key="parameters.observations",
                remedy="use `words` with a word-level model.",
            )
        words = (word for word in WORDS[self.parameters.game] if word not in FILLERS)
        return ("<think>", "</think>", "err", *FILLERS, *words)

    def random_turn(self, prompt: str, observation: str, rng: np.random.Generator) -> str:
        """Take or put down what is in sight, or leave by a random exit."""
        text = observation or prompt
        actions = [f"move {d.lower()}" for d in _DIRECTION.findall(text)]
        actions += ["take coin"] if "coin" in text else []
        actions += ["put coin in box"] if "box" in text else []
        return f"{think_span(rng, self._mix)} {rng.choice(actions or ['look around'])}"

    def expert_path(self, task: Task) -> list[str]:
        """The expert's actions."""
        return list(self._path(task.params["fold"], task.params["seed"]))

    def _find_path(self, fold: str, seed: int) -> tuple[str, ...]:
        if self.parameters.game == "coin":
            return tuple(self._map(fold, seed).depth_first())
        game = pool.take(self.parameters.game, self.parameters.properties)
        generate(game, fold, seed, gold=True)
        path = tuple(action for action in game.getGoldActionSequence() if action not in IDLE)
        pool.give(self.parameters.game, self.parameters.properties, game)
        return path

    def demonstrate(self, task: Task, rng: np.random.Generator, expert: bool) -> Demonstration:
        """The expert, or a demonstrator that follows it until it strays and acts at random from then on."""
        parameters = self.parameters
        environment = self.make()
        prompt = environment.reset(task, 0)
        plan = self.expert_path(task)[::-1]
        turns: list[str] = []
        observations: list[str] = []
        step, strayed = Step(""), False
        while len(turns) < self.limits.max_turns and not step.done:
            strayed = strayed or (not expert and rng.random() < parameters.stray)
            if not expert and rng.random() < parameters.malformed:
                action = "take"
            elif strayed:
                action = str(rng.choice(environment.valid_actions()))
            else:
                action = plan.pop()
            turns.append(f"{think_span(rng, self._mix)} {action}")
            step = environment.step(turns[-1])
            observations.append(step.observation)
        environment.close()
        observations[-1] = ""
        return Demonstration(task, prompt, tuple(turns), tuple(observations), step.reward, step.success)

    def skill(self, task: Task) -> str:
        """The expert's actions in order but for the last one: gives away the whole way, not its last step."""
        return " ".join(self.expert_path(task)[:-1])

    def oracle_features(self, task: Task, turns: Sequence[str], observations: Sequence[str]) -> list[str]:
        """Per turn: turns used, whether an error happened, whether the coin is in sight, whether it was taken."""
        text = self.make_prompt(task)
        features, error, taken = [], False, False
        for used, observation in enumerate(observations[: len(turns)]):
            features.append(f"t{used} e{int(error)} s{int('coin' in text)} g{int(taken)}")
            text = observation.lower()
            error = error or text == "err"
            taken = taken or "you take the coin" in text
        return features

    def make_prompt(self, task: Task) -> str:
        """What is in sight at the start."""
        environment = self.make()
        environment.reset(task, 0)
        look = environment.look
        environment.close()
        return look


class TextWorldEnvironment:
    """One game. ``close`` hands its interpreter back; so does the end of the episode."""

    def __init__(self, family: TextWorldFamily) -> None:
        self._family = family
        self._game: Game | None = None
        self._actions: list[str] = []

    def reset(self, task: Task, seed: int) -> str:
        """Start a game; the seed changes nothing, as games are deterministic. Returns task and first sight."""
        self.close()
        parameters = self._family.parameters
        self._game = pool.take(parameters.game, parameters.properties)
        self._task, self._actions, self._map_read = task, [], False
        self._state = generate(self._game, task.params["fold"], task.params["seed"])
        description = self._family.show(self._game.getTaskDescription())
        return f"{description} {self._family.show(self._state['observation'])}"

    @property
    def look(self) -> str:
        """What is in sight."""
        return self._family.show(self._state["look"])

    def valid_actions(self) -> list[str]:
        """The possible actions, sorted."""
        return sorted(self._state["validActions"])

    def step(self, turn: str, complete: bool = True) -> Step:
        """One action. Reward 1 when the game reports success."""
        if self._game is None:
            raise RuntimeError("step() before reset() or after the episode ended")
        action = parse(turn) if complete else None
        if action is None or action not in self._state["validActions"]:
            return Step("err", valid=False)
        self._advance(action)
        if self._state["tasksuccess"] or self._state["taskfailure"]:
            self.close()
            solved = bool(self._state["tasksuccess"])
            return Step("", done=True, reward=float(solved), success=solved)
        return Step(self._family.show(self._state["observation"]))

    def _advance(self, action: str) -> None:
        self._state = _act(self._game, action)
        self._actions.append(action)
        self._map_read = self._map_read or action == "read map"

    def clone(self) -> TextWorldEnvironment:
        """A copy in another interpreter, brought to the same turn by replaying the actions."""
        copy = TextWorldEnvironment(self._family)
        copy.reset(self._task, 0)
        for action in self._actions:
            copy._advance(action)
        if self._game is None:
            copy.close()
        return copy

    def anchor(self) -> str:
        """Room, inventory, and whether the map was read."""
        state = self._state
        known = "map read" if self._map_read else ""
        return " | ".join((self._task.hash, self.look, self._family.show(state["inventory"]), known))

    def close(self) -> None:
        """Hand the interpreter back."""
        if self._game is not None:
            pool.give(self._family.parameters.game, self._family.parameters.properties, self._game)
            self._game = None


def _act(game: Game, action: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(game.stepJSON(action))
    return state


def _room(text: str) -> str:
    return text.split("You are in the ", 1)[1].split(".", 1)[0]
