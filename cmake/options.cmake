# Compiler flags and build options.
option(MOK_TESTS "Build the tests" ON)
option(MOK_GPU_TESTS "Build the programs of tests/gpu without the other tests" OFF)
option(MOK_WITH_CPU "Build the CPU backend when OpenBLAS is found" ON)
option(MOK_WITH_CUDA "Build the CUDA backend when nvcc is found" ON)
option(MOK_WITH_MPI "Build the MPI peer when MPI is found" ON)
option(MOK_LANES_ARRIVE "Build kernels for compute-sanitizer's racecheck: every lane of a warp arrives at its barriers" OFF)
option(MOK_FUZZ "Build the fuzz targets of tests/fuzz with libFuzzer (clang)" OFF)
set(MOK_SANITIZE "" CACHE STRING "Sanitizers for the whole build: 'address,undefined' or 'thread'")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include(GNUInstallDirs)
# The installed tool finds the library beside it, wherever the tree stands. From a library folder with a full path (Nix, Guix) no way leads to
# the prefix: the tool names that folder, and mok.pc, like CMake's own package, the configured prefix.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(CMAKE_INSTALL_RPATH ${CMAKE_INSTALL_LIBDIR})
  install(CODE "if(NOT CMAKE_INSTALL_PREFIX STREQUAL \"${CMAKE_INSTALL_PREFIX}\")
  message(FATAL_ERROR \"CMAKE_INSTALL_LIBDIR is a full path, so the prefix must be the configured one: ${CMAKE_INSTALL_PREFIX}\")
endif()")
else()
  set(CMAKE_INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})
endif()

add_library(mok_headers INTERFACE)
target_include_directories(mok_headers INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# Flags of every target of this project. No contraction of a*b+c: a rounding point stands where numerics.md puts it, and nowhere else.
add_library(mok_flags INTERFACE)
target_include_directories(mok_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(mok_flags INTERFACE mok_headers)
set(mok_c_flags -Wall -Wextra -Werror -Wno-unused-function -Wshadow -Wstrict-prototypes -Wmissing-prototypes -ffp-contract=off
                -fvisibility=hidden)
target_compile_options(mok_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${mok_c_flags}>")

# What is built names its sources by their way from the source folder: an install says nothing of the machine that built it, and a debugger that is
# started in that folder finds them. Kernels: src/cuda/compile_kernel.sh.
set(mok_path_flags -ffile-prefix-map=${CMAKE_BINARY_DIR}=. -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)
target_compile_options(mok_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${mok_path_flags}>")

set(mok_sanitizers ${MOK_SANITIZE})
if(MOK_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "MOK_FUZZ needs clang: configure with -DCMAKE_C_COMPILER=clang")
  endif()
  set(mok_sanitizers fuzzer-no-link,address,undefined) # coverage everywhere; the main program of a fuzzer only in its own link
endif()
if(mok_sanitizers)
  set(mok_sanitize_flags -fsanitize=${mok_sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(mok_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${mok_sanitize_flags}>")
  target_link_options(mok_flags INTERFACE -fsanitize=${mok_sanitizers})
endif()
