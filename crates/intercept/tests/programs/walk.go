package main
import ("fmt";"os";"io";"path/filepath";"os/exec";"sync";"os/user")
func main(){
 d:=os.Args[1]
 u,_:=user.Current(); _ = u
 os.MkdirAll(d+"/a/b",0755)
 var wg sync.WaitGroup
 for i:=0;i<50;i++{ wg.Add(1); go func(i int){defer wg.Done(); p:=fmt.Sprintf("%s/a/f%d",d,i); if e:=os.WriteFile(p,[]byte(fmt.Sprint("x",i)),0644);e!=nil{panic(e)}; b,e:=os.ReadFile(p); if e!=nil||string(b)!=fmt.Sprint("x",i){panic(e)}}(i)}
 wg.Wait()
 n:=0; filepath.Walk(d,func(p string,i os.FileInfo,e error)error{n++;return e})
 fmt.Println(n)
 f,_:=os.Open(d+"/a/f7"); b,_:=io.ReadAll(f); fmt.Println(string(b))
 out,e:=exec.Command("cat",d+"/a/f8").CombinedOutput(); fmt.Println(string(out),e)
 c:=exec.Command("cat","f9"); c.Dir=d+"/a"; out,e=c.CombinedOutput(); fmt.Println(string(out),e)
 os.RemoveAll(d+"/a"); _,e=os.Stat(d+"/a"); fmt.Println(os.IsNotExist(e))
}
