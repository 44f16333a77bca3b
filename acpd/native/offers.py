"""The models that one process can talk to: which is used where none was chosen, which can be chosen, each loaded once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import TYPE_CHECKING

from acpd.errors import AcpdError
from acpd.native import keys, models
from acpd.native.models import PROVIDERS, Chosen

if TYPE_CHECKING:
    from acpd.native.models import Loaded
    from acpd.native.settings import Settings
    from acpd.tasks import Tasks

MOST = 200
"""Models of a provider that are offered; those that resell have more, and nobody reads such a list."""
NO_MODEL = "offline"
"""The value of the option `model` where there is none."""


class Offers:
    """`usual`: the model of a session that has chosen none, None: there is none (yet). `trouble`: why what was configured
    cannot be used. `env` has the keys, those too that are stored in a file.
    """

    def __init__(self, settings: Settings, environ: Mapping[str, str], tasks: Tasks) -> None:
        """Reads the file of keys."""
        self.env: Mapping[str, str] = environ
        self.usual: Chosen | None = None
        self.trouble: AcpdError | None = None
        self._tasks = tasks
        self._others: dict[str, tuple[Chosen, ...]] = {}
        """What each provider has said that it has."""
        self._asked: set[str] = set()
        self._loading: dict[Chosen, asyncio.Task[Loaded]] = {}
        self._uses: Counter[Chosen] = Counter()
        self._searching: asyncio.Task[None] | None = None
        try:
            self.env = keys.environment(settings, environ, models.key_names(settings.model))
            self.usual = models.choose(self.env, settings.model, settings.base_url)
        except AcpdError as error:
            self.trouble = error

    def offered(self) -> tuple[Chosen, ...]:
        """What can be chosen, with MOST of each provider at most: the usual one first, then each provider's that is known."""
        return self._known(MOST)

    def _known(self, most: int | None = None) -> tuple[Chosen, ...]:
        found = {} if self.usual is None else {self.usual.id: self.usual}
        for provider, known in PROVIDERS.items():
            if known.model and models.key_of(provider, self.env):
                each = self._at_home(models.parse(provider, self.env))
                found.setdefault(each.id, each)
        for listed in self._others.values():
            for each in listed[:most]:
                found.setdefault(each.id, each)
        return tuple(found.values())

    def named(self, identifier: str) -> Chosen:
        """How the model of this id is reached. Raises ModelUnusable if that is no PROVIDER:NAME."""
        for each in self._known():
            if each.id == identifier:
                return each
        return self._at_home(models.parse(identifier, self.env))

    def has(self, identifier: str) -> bool:
        """Whether the model of this id can be chosen. Of a provider that has not said what it has, any."""
        if any(each.id == identifier for each in self._known()):
            return True
        try:
            chosen = self.named(identifier)
        except AcpdError:
            return False
        return chosen.provider not in self._others and bool(chosen.base_url or models.key_of(chosen.provider, self.env))

    def _at_home(self, chosen: Chosen) -> Chosen:
        """Where the usual model is, if it shares its key: that goes to no other server."""
        usual = self.usual
        if usual is None or not set(models.key_names(usual.id)) & set(models.key_names(chosen.id)):
            return chosen
        return Chosen(chosen.provider, chosen.name, usual.base_url)

    async def found(self) -> None:
        """Until it is known whether there is a model at all. Cancelling this leaves the search alone."""
        if self.usual is None and self.trouble is None:
            if self._searching is None:
                self._searching = self._tasks.spawn(self._search(), name="ollama")
            await asyncio.shield(self._searching)

    async def _search(self) -> None:
        if local := await models.find_ollama(self.env):
            self.usual = local[0]
            self._others["ollama"] = local

    async def look(self, like: Chosen) -> bool:
        """Ask the provider, once, which models it has; True: it has said so now."""
        if like.provider in self._others or like.provider in self._asked or like.provider not in PROVIDERS:
            return False
        self._asked.add(like.provider)
        from acpd.native.listing import listed

        self._others[like.provider] = await asyncio.to_thread(listed, like, self.env)
        if not self._others[like.provider]:
            del self._others[like.provider]  # it has not said that it has none
            return False
        return True

    async def loaded(self, chosen: Chosen) -> Loaded:
        """The model, ready to be asked. Raises ModelUnusable. Cancelling this leaves the import alone."""
        loading = self._loading.get(chosen)
        if loading is None or (loading.done() and loading.exception() is not None):
            work = asyncio.to_thread(models.load, chosen, self.env)
            loading = self._loading[chosen] = self._tasks.spawn(work, name=f"load:{chosen.id}", watched=True)
        return await asyncio.shield(loading)

    @contextlib.asynccontextmanager
    async def using(self, chosen: Chosen) -> AsyncGenerator[Loaded]:
        """As `loaded`, and nobody closes its connections meanwhile."""
        self._uses[chosen] += 1
        try:
            yield await self.loaded(chosen)
        finally:
            self._uses[chosen] -= 1
            if not self._uses[chosen]:
                del self._uses[chosen]

    async def close(self, but: Collection[Chosen] = ()) -> bool:
        """Let go of the models that nobody uses, `but` these, and close their connections; whether none is left."""
        for chosen in [each for each in self._loading if each not in but and each not in self._uses]:
            loading = self._loading.pop(chosen)
            try:
                await asyncio.wait([loading])
                if not loading.cancelled() and loading.exception() is None:
                    await loading.result().http.aclose()
            except asyncio.CancelledError:
                self._loading.setdefault(chosen, loading)  # for the next one
                raise
        return not self._loading
