import sys, time, collections
from tests.soak.generate import generate
from tests.soak.run import run
if len(sys.argv)==2:
    p=generate(int(sys.argv[1])); print(p); 
    for w in run(p): print(w)
else:
    a,b=int(sys.argv[1]),int(sys.argv[2]); t=time.time(); bad=0
    for s in range(a,b):
        p=generate(s); t0=time.time()
        w=run(p)
        if time.time()-t0>1: print('slow',s,time.time()-t0)
        if w:
            bad+=1
            print('SEED',s); [print('   ',x[:1500]) for x in w[:3]]
            if bad>=int(sys.argv[3] if len(sys.argv)>3 else 5): break
    print((time.time()-t)/(s-a+1)*1000,'ms each', s)
