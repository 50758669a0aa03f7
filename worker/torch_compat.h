// The only way in to libtorch's headers, for the few sources that need them: precompiled. What
// differs between libtorch 1.13 and 2.x belongs here; so far nothing that is used does.
//
// No header that the training loop sees may include it.
#pragma once

#include <torch/script.h>
#include <torch/torch.h>

// Caffe2's logging macro; other libraries have their own.
#ifdef CHECK
#undef CHECK
#endif
