// SPDX-License-Identifier: Apache-2.0
// What nearly every test needs that runs under GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include "kit/standard.hpp"
