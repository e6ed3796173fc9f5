#pragma once
// Classifiers of clips.

#include "libcore/nn/zoo.h"

namespace galley {

/// r3d_18, mc3_18 and r2plus1d_18, for the table of models.
ModelTable video_models();

}  // namespace galley
