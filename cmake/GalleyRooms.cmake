# Rules shared by every target: the include path is the repository root; warnings are errors with the compilers that were tried, while what a
# newer one finds must not stop a user's build.
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20))
  set(tried ON)
else()
  set(tried OFF)
endif()
option(GALLEY_WARNINGS_AS_ERRORS "Warnings stop the build" ${tried})
add_library(galley_options INTERFACE)
target_include_directories(galley_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(galley_options INTERFACE -Wall -Wextra $<$<BOOL:${GALLEY_WARNINGS_AS_ERRORS}>:-Werror> -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns falsely at -O3 about every "text" + std::string (its bug 105651).
  target_compile_options(galley_options INTERFACE -Wno-restrict)
endif()
if(GALLEY_SANITIZE)
  target_compile_options(galley_options INTERFACE -fsanitize=${GALLEY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(galley_options INTERFACE -fsanitize=${GALLEY_SANITIZE})
endif()
find_program(GALLEY_CCACHE ccache)
if(GALLEY_CCACHE)
  # Without pch_defines it would not keep what was compiled with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${GALLEY_CCACHE})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# galley_optimize(<target> <level>): where no time is spent at run time, -O1 or -O2 instead of Release's -O3 shortens the build.
function(galley_optimize target level)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O${level}>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND level EQUAL 1)
    target_compile_options(${target} PRIVATE -Wno-array-bounds)  # GCC 12 at -O1, as above
  endif()
endfunction()

# galley_room(<name> [FOLDER dir] [OPTIMIZE level] [NEEDS rooms and libraries...]): every *.cpp of libcore/<name> as one object library
# galley_<name>, so that a fuzz target or a sanitizer build can link only the rooms it uses.
function(galley_room name)
  cmake_parse_arguments(ROOM "" "FOLDER;OPTIMIZE" "NEEDS" ${ARGN})
  if(NOT ROOM_FOLDER)
    set(ROOM_FOLDER ${name})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/libcore/${ROOM_FOLDER}/*.cpp)
  if(NOT sources OR (GALLEY_ROOMS AND NOT name IN_LIST GALLEY_ROOMS))
    return()
  endif()
  add_library(galley_${name} OBJECT ${sources})
  target_link_libraries(galley_${name} PUBLIC galley_options ${ROOM_NEEDS})
  if(ROOM_OPTIMIZE)
    galley_optimize(galley_${name} ${ROOM_OPTIMIZE})
  endif()
  set_property(GLOBAL APPEND PROPERTY GALLEY_ROOMS galley_${name})
endfunction()
