"""Packaging. The templates and traces of the top level travel inside the wheel as package data."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "skiptrain_plugin/__init__.py").read_text())
assert VERSION is not None

setup(
    name="skiptrain-plugin",
    version=VERSION[1],
    description="SkipTrain: energy-aware decentralized learning for DecentralizePy",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=[
        *find_packages(include=["skiptrain_plugin", "skiptrain_plugin.*"]),
        "skiptrain_plugin.config_templates",
        "skiptrain_plugin.energy_traces",
    ],
    package_dir={
        "skiptrain_plugin": "skiptrain_plugin",
        "skiptrain_plugin.config_templates": "config_templates",
        "skiptrain_plugin.energy_traces": "energy_traces",
    },
    package_data={
        "skiptrain_plugin": ["py.typed"],
        "skiptrain_plugin.kernels": ["*.c", "*.h"],
        "skiptrain_plugin.config_templates": ["*.ini"],
        "skiptrain_plugin.energy_traces": ["*.csv"],
    },
    install_requires=[
        "click>=8.1",
        "filelock>=3.12",
        "matplotlib>=3.8",
        "networkx>=3.1",
        "numpy>=1.26",
        "pandas>=2.1",
        "pillow>=10",
        "platformdirs>=4",
        "pydantic>=2.6,<3",
        "pyzmq>=25",
        "rich>=13.7",
        "safetensors>=0.4.3",
        "scipy>=1.11",
        "torch>=2.4,<2.14",
        "torchvision>=0.19,<0.29",
    ],
    extras_require={
        "dev": ["hypothesis>=6.100", "mypy>=1.10", "pytest>=8", "pytest-timeout>=2.3", "ruff>=0.5", "setuptools>=68"],
        "tensorboard": ["tensorboard>=2.16"],
    },
    entry_points={
        "console_scripts": ["skiptrain = skiptrain_plugin.cli:main"],
    },
)
