#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The script is not called copy.py, which Python would take for its own module of that name.
exec python3 "$(dirname "$0")/copy_files.py" "$@"
