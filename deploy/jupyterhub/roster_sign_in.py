"""Sign-in by a roster that may change while the hub runs.

JupyterHub reads `allowed_users` and `load_groups` when it starts. Here the site's file, and the Unix group of the
students, are read again whenever somebody signs in or starts a server, and every five minutes for who is signed in.
"""

from hub_settings import SettingsError, read_settings, roster
from jupyterhub.utils import maybe_future
from traitlets import Dict, Unicode
from traitlets.utils.importstring import import_item

__all__ = ["by_roster"]


def by_roster(authenticator: str, taught: str, teaching: str) -> type:
    """A subclass of an authenticator that reads the roster again; the groups are those of students and instructors."""

    class RosterAuthenticator(import_item(authenticator)):
        groups = Dict(key_trait=Unicode(), value_trait=Unicode())  # name → group

        def read_roster(self) -> None:
            """Read who may enter, each with a group. A file that is wrong leaves the roster as it was."""
            try:
                students, instructors = roster(read_settings())
            except SettingsError as error:
                self.log.error("the roster stays as it was: %s", error)
            else:
                self.groups = dict.fromkeys(students, taught) | dict.fromkeys(instructors, teaching)
                self.allowed_users = set(self.groups)

        def check_allowed(self, username, authentication=None):
            self.read_roster()
            return super().check_allowed(username, authentication)

        async def refresh_user(self, user, handler=None, **kwargs):
            self.read_roster()
            if user.name not in self.allowed_users:
                return False
            self.join_group(user)
            return await maybe_future(super().refresh_user(user, handler, **kwargs))

        async def pre_spawn_start(self, user, spawner):
            self.read_roster()
            self.join_group(user)
            await maybe_future(super().pre_spawn_start(user, spawner))

        def join_group(self, user) -> None:
            """Put a user into the one of the two groups; others stay."""
            if group := self.groups.get(user.name):
                others = {each.name for each in user.orm_user.groups} - {taught, teaching}
                user.sync_groups(others | {group})

    return RosterAuthenticator
