/* rounding.h: the operands of matrix products under --precision bf16 and fp16.
 *
 * note: rounding
 * An operand is a matrix that a matrix product reads. Under tape->precision bf16 or f16, every operand is first rounded
 * to that precision: the activation, the weight, and in backward the incoming gradient. Products are summed in float32,
 * and everything else is float32. Under float32, tensors are the operands themselves, and nothing is copied.
 *
 * Interface: op_linear() gets its operands here. No other operation needs to know that they are copies.
 */
#ifndef LOCKSTEP_AUTOGRAD_ROUNDING_H
#define LOCKSTEP_AUTOGRAD_ROUNDING_H

#include "autograd/tape.h"

/* x as an operand, valid until the next tape_begin(). If x is stored in tape->precision already (op_attention() stores
 * its result so), this is x->data; otherwise a rounded copy.
 *
 * note: weight-operands
 * A parameter keeps its copy, because every micro-batch reads it. The copy is made at the first product after the
 * value has changed. So code that writes a value must call parameter_changed() or parameters_changed(). */
const void *rounded_operand(Tape *tape, const Tensor *x);
/* out->grad as an operand. It may be rounded in place, because op_linear()'s backward function is its last reader. */
const void *rounded_gradient(Tape *tape, Tensor *out);

/* Frees the parameter's copy. The next product makes a new one. */
void parameter_drop_copy(Parameter *parameter);

/* The dtype in which operations have read the parameter since it was made, or since the last parameter_forget_reads():
 * bf16 or f16 if only matrix products have read it, rounded to that type; else float32. */
DType parameter_read_as(const Parameter *parameter);
void parameter_forget_reads(Parameter *parameter);

/* Finds the first parameter whose copy is marked as up to date but differs from the rounded value: some code wrote the
 * value and did not call parameter_changed(). NULL: there is none. Slow: compares all numbers. */
const Parameter *parameters_find_stale(const ParameterList *list);
size_t parameters_operand_bytes(const ParameterList *list); /* bytes of all copies that are kept */

#endif
