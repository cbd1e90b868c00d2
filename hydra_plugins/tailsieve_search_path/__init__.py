"""Makes ``+tailsieve=<preset>`` known to Hydra wherever this package is installed."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class TailSieveSearchPath(SearchPathPlugin):
    """Appends the packaged presets, so that no name of the user's own can be shadowed."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="tailsieve_verl", path="pkg://tailsieve_verl.config")
