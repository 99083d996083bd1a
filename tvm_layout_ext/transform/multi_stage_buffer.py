"""placeholder"""
def InjectMultiStageBuffer():
    from tvm.tirx.transform import prim_func_pass
    return prim_func_pass(lambda f,m,c:f, opt_level=0,name="tvm_layout_ext.InjectMultiStageBuffer")
