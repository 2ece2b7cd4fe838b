#pragma once

#include "mma.cuh"
