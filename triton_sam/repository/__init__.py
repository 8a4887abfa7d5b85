"""The model repository: the folders of the models, their config.pbtxt files, and their names.

`install` moves all files of an export or none, `hashes` verifies files before serving, `selection` chooses the models
to load, `aliases` adds names, and `accelerators` writes the settings of GPUs and OpenVINO.
"""

from ..families import pair_names
from .config import CONFIG_NAME, check_name, config_for, parse_config
from .folder import (
    BUILT_IN_CHECKPOINT,
    REPOSITORY_VARIABLE,
    RepositoryModel,
    default_repository,
    list_models,
    version_folders,
    weights_in,
)

__all__ = [
    "BUILT_IN_CHECKPOINT",
    "CONFIG_NAME",
    "REPOSITORY_VARIABLE",
    "RepositoryModel",
    "check_name",
    "config_for",
    "default_repository",
    "list_models",
    "pair_names",
    "parse_config",
    "version_folders",
    "weights_in",
]
