"""Where glossd keeps its files when nobody says otherwise. Reads the environment; writes nothing."""

import os
from pathlib import Path

import platformdirs

APP = "glossd"


def config_file() -> Path:
    """The TOML file that is read when none is named."""
    return Path(platformdirs.user_config_dir(APP)) / "glossd.toml"


def state_dir() -> Path:
    return Path(platformdirs.user_state_dir(APP))


def models_dir() -> Path:
    """Where pulled models are kept, apart from any node's state: nodes on one machine share them."""
    return Path(platformdirs.user_data_dir(APP)) / "models"


def socket_path(state: Path) -> Path:
    """In the user's runtime folder, which a reboot empties; below `state` where there is none."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    if runtime.is_absolute() and _is_private(runtime):
        return runtime / APP / "glossd.sock"
    return state / "glossd.sock"


def _is_private(folder: Path) -> bool:
    """Ours, and nobody else may write there: who can write can put another socket in place of ours."""
    try:
        info = folder.stat()
    except OSError:
        return False
    return folder.is_dir() and info.st_uid == os.getuid() and not info.st_mode & 0o022
