#pragma once
// The sanitizers of this build as macros: GCC and clang announce them differently.

#ifndef __has_feature
#define __has_feature(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define GALLEY_ASAN 1
#else
#define GALLEY_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define GALLEY_TSAN 1
#else
#define GALLEY_TSAN 0
#endif
