"""A kernel in PTX, around the instructions that a test is about."""

from __future__ import annotations

PTX = """.version 8.0
.target sm_80
.visible .entry k(.param .u64 .ptr .align 16 a, .param .u64 .ptr o)
.reqntid 32, 1, 1
{   // a comment; with a semicolon
    .shared .align 4 .b8 s[128];
    .reg .b32 %%r<9>; .reg .b64 %%rd<9>; .reg .pred %%p<3>;
    ld.param.u64 %%rd1, [a]; ld.param.u64 %%rd2, [o];
    mov.u32 %%r1, %%tid.x; mul.wide.u32 %%rd3, %%r1, 4; mov.b32 %%r5, s; shl.b32 %%r6, %%r1, 2;
    add.s64 %%rd4, %%rd1, %%rd3; add.s64 %%rd5, %%rd2, %%rd3; add.s32 %%r7, %%r5, %%r6;
    ld.global.b32 %%r2, [%%rd4];
    %s
    st.global.b32 [%%rd5], %%r3;
    ret;
}"""
