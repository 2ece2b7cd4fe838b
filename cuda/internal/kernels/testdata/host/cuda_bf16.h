#include "cuda_on_host.h"
